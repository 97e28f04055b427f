"""One module an engine, and the choice among them; `export.runtime` is the way in."""
