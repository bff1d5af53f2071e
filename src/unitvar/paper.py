"""Where the reproduction of the paper went."""

raise ModuleNotFoundError(
    "unitvar.paper is now the package unitvar_reproduction; install it from a checkout: pip install ./reproduction",
    name=__name__,
)
