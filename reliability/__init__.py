"""Long checks of golddiff under hostile conditions; golddiff itself imports nothing from here."""
