"""Files made to do harm, each with the code that it has to end with."""
