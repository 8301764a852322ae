"""What makes the method work and what it costs: analyses, ablations, speed of the machine."""
