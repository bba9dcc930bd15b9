"""llama.cpp's GBNF, written as llguidance's kind of Lark with the same texts."""
