"""Side by side in one run: this program, what a skilled person does by hand, and labml_remote."""
