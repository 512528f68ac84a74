"""Pages for people: what quantization did, and what to do next. Everything that they do goes through the services."""
