"""Better flow on one's own footage, without ground truth: teacher, student, acceptance."""
