from services.prefill.app import main

if __name__ == "__main__":
    main()
