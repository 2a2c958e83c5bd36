"""What the engine says about itself and about models: from its own program, block tables and events."""
