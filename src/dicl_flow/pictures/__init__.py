"""Arrays as pictures: flow colours, arrows, keys, contact sheets, and matplotlib figures."""
