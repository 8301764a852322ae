"""Arrays as pictures: colours of flow, arrows, sheets, and figures by matplotlib."""
