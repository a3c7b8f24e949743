"""Fair comparisons: an experiment file -> runs with several seeds -> one report.

`experiment` reads what is asked, `cells` lists the runs (and `matching` finds widths), `running`
trains and scores them, `outcome` says what was found and `doubts` how sure that is; `tables`,
`charts`, `page` and `markdown` write it down.

Nothing else knows this room: to remove it, delete the folder, `cli/compare.py` and its lines in
`cli/__init__.py` and `regard/__init__.py`.
"""

from regard.comparison.comparing import compare
from regard.comparison.outcome import Outcome

__all__ = ["Outcome", "compare"]
