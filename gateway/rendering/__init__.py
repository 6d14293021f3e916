"""How each engine turns a chat request into template input, one module an engine."""
