"""The modes of a config: what each plans, fills and emits."""
