"""What a model writes, read: thoughts, tool calls and text told apart, as the pieces of a stream come."""
