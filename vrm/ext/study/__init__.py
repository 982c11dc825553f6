"""Studies: experiments of many runs, comparisons of runs, pages and pictures of them, and how true simulations are."""
