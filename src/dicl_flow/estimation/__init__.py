"""From images to a flow and what can be said of it; modules are imported one by one."""
