"""Where the reproduction of the paper went."""

raise ModuleNotFoundError(
    "unitvar.paper is now the package unitvar_reproduction: pip install ./reproduction from a checkout.", name=__name__
)
