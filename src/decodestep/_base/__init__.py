"""The base layer, private: checks, arrays, dispatch, limits of the machine, exact arithmetic, spellings of bytes."""
