"""What the command line does beyond starting processes: local and remote runs, the demo, the doctor, their views."""
