"""Memory and arithmetic, no maths: what a request's caches hold, who owns which place, how the ring turns."""
