"""The packages that programs depend on: found in the operator's package index, checked, and unpacked."""
