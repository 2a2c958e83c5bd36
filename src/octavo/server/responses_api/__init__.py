"""OpenAI's /v1/responses: a body to a chat, and the chat's output to items and typed events."""
