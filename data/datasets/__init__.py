"""Data sets known by name, among them the drawn tasks of the Long Range Arena."""
