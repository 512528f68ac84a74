"""Jobs: the state machine, its log, its dispatch, and their HTTP face."""
