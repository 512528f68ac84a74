"""What a run lends its stages: progress, time, memory of finished work, files."""
