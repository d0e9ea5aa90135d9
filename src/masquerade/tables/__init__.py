"""Tables as people have them: read and checked in one text, which needs no torch."""
