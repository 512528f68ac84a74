"""What quantizers write, undone form by form: each form knows its operators, and gives their floats back."""
