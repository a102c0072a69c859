"""The pages: what a person sees and presses. What acts goes through `console.operations`, as the API does."""
