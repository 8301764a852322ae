"""From images to flow, confidence and occlusion; import its modules one by one."""
