"""Fast versions of formulas in `regard.nn`. Everything works without this folder, only slower."""
