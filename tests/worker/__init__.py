"""Workers: the pure parts, and workers in processes of their own."""
