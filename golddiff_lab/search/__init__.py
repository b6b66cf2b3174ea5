"""``golddiff bench index``: ways to find the nearest images, their time and their recall."""
