"""What runs inside the sandbox: the guest's half of the runner component.

These modules are compiled into the component (see ``component.py``) under the same names, and run on its CPython 3.14; they
import nothing of the host's half. Only ``app.py`` needs the component to be importable.
"""
