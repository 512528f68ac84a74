"""Steps that repair what integers take away, before any finetuning."""
