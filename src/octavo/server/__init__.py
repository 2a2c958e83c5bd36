"""The HTTP server: OpenAI's API over one engine, in one process."""
