"""The verbs of the command line, a module each.

A module has ``add_to(verbs)``, which adds its parser and names the function to call. What takes long to import is
imported inside that function, so that help, lists and mistakes answer at once.
"""
