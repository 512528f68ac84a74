"""What the samples can carry: intervals of figures and of their differences, and tests of both."""
