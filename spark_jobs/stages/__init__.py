"""What runs beside a streaming job: compiling it, and materialising its bounded inputs."""
