"""Anthropic's /v1/messages: a body to a chat, and the chat's output to content blocks and their events."""
