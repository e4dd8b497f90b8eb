"""The commands of the `amplint` program, one a module, each loaded when it is called."""
