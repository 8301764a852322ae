"""Arrays as pictures: flow colours, arrows, contact sheets, and matplotlib figures."""
