"""Jobs: state machine, event log, dispatch, and HTTP routes."""
