"""Jobs side by side: what was asked for, what came out, which samples changed sides."""
