"""What a runner may do: the kernel's controls that hold it, which of them are here, and what they let through."""
