"""What the gateway answers for programs and scripts: one family of operations a module or folder."""
