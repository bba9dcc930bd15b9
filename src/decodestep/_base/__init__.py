"""The ground floor: checks, arrays, dispatch and exact arithmetic."""
