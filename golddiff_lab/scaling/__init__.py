"""``golddiff bench scaling``: how time, memory and error change with the number of images."""
