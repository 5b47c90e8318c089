"""What this machine is good for: probes that cost next to nothing, and what follows from them."""
