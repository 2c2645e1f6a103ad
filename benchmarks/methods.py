"""The four papers' heads and losses beside plain dense torch forms of the same equations, as one table.

python -m benchmarks.methods
"""

from benchmarks import methods_crt, methods_diva, methods_hist, methods_mpn
from benchmarks.timing import table

if __name__ == "__main__":
    print(table([row for part in (methods_hist, methods_mpn, methods_crt, methods_diva) for row in part.rows()]))
